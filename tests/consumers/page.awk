# page.awk -v folder=F -v shift=N PAGE: the marked blocks of a page of docs/start as a shell script, in their order. A block
#   ```LANGUAGE FILE   is a file, which is written into the folder in which the shell is
#   ```sh              has commands. They run in one shell, so that `cd`, variables and background jobs last
#   ```text            is what the commands before have printed; it is written to F/LINE.expected and compared by printed.awk
# and all other blocks are left out. Ports of localhost are moved by N, so that two tests can run at the same time.
function flush_commands() {
  if (!commands) return
  print "begin " commands
  printf "{\n%s} >\"$printed\" 2>&1\n", text
  commands = 0
}
function with_moved_ports(line,   result) {
  while (match(line, /localhost:[0-9]+/)) {
    result = result substr(line, 1, RSTART + 9) (substr(line, RSTART + 10, RLENGTH - 10) + shift)
    line = substr(line, RSTART + RLENGTH)
  }
  return result line
}
/^```/ && !inside {
  inside = 1
  kind = substr($1, 4)
  file = kind == "sh" || kind == "text" ? "" : $2
  if (file != "" || kind == "sh") flush_commands()
  if (file != "") print "cat >'" file "' <<'END_OF_FILE'"
  if (kind == "sh") {
    commands = FNR + 1
    text = ""
  }
  if (kind == "text") {
    if (!commands) {
      print "page.awk: nothing was run before line " FNR >"/dev/stderr"
      failed = 1
      exit
    }
    expected = folder "/" (FNR + 1) ".expected"
    printf "" >expected
    flush_commands()
    print "check " (FNR + 1)
  }
  next
}
/^```$/ {
  if (file != "") print "END_OF_FILE"
  if (kind == "text") close(expected)
  inside = 0
  file = kind = ""
  next
}
inside && file != "" { print }
inside && kind == "sh" { text = text with_moved_ports($0) "\n" }
inside && kind == "text" { print with_moved_ports($0) >expected }
END {
  if (failed) exit 1
  flush_commands()
}
