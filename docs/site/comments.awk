# comments.awk HEADER: the header with its comments as Doxygen reads them, line for line. A block of `//` directly above a declaration
# and a comment behind a declaration belong to it; blocks that a blank line follows and comments in functions stay as they are.
# The comments of a header for C count as `//`; the one at its top belongs to the file.
function is_comment(i) { return line[i] ~ /^ *\/\/( |$)/ && line[i] !~ /NOLINT/ }

# Text as Doxygen prints it unchanged: only `code` and lists have a meaning in our comments.
function escaped(text,   part, count, i, result) {
  count = split(text, part, "`")
  for (i = 1; i <= count; i++) {
    if (i % 2) {
      gsub(/[\\@<>&#%]/, "\\\\&", part[i])
      gsub(/--/, "\\--", part[i])
    }
    result = result (i > 1 ? "`" : "") part[i]
  }
  return result
}

# A comment above a declaration. Lines that are indented, but not in a list, are code.
function write_block(first, last,   i, indent, text, code, list) {
  for (i = first; i <= last; i++) {
    match(line[i], /^ *\/\//)
    indent = substr(line[i], 1, RLENGTH - 2)
    text = substr(line[i], RLENGTH + 1)
    if (text !~ /^  /) list = 0
    if (!code && text ~ /^ *(-|[0-9]+\.) /) list = 1
    if (!list && text ~ /^   /) {
      sub(/^   /, "", text)
      if (!code) text = "\\code{.cpp} " text
      code = i < last && line[i + 1] ~ /^ *\/\/   /
      if (!code) text = text " \\endcode"
    } else {
      text = escaped(text)
    }
    print indent "///" text
  }
}

# A comment behind a declaration, or as it is.
function write_line(text,   at) {
  at = index(text, "  // ")
  if (!at || text ~ /^ *[#}]/ || text ~ /NOLINT/ || substr(text, 1, at) ~ /[{(\\] *$/) print text
  else print substr(text, 1, at) " ///< " escaped(substr(text, at + 5))
}

# A line of a header for C, with `//` in place of its comment.
function as_cpp(text,   ends) {
  ends = text ~ /\*\/$/
  if (in_c) sub(/^ *\*\/$| \*/, "//", text)
  else if (text ~ /^ *\/\* /) in_c = sub(/\/\*/, "//", text)
  else if (ends) sub(/\/\* /, " // ", text)
  if (ends) in_c = 0
  sub(/ *\*\/$/, "", text)
  return text
}

# Private members are left empty.
match($0, /^ *private:/) { private = substr($0, 1, index($0, "p") - 2) }
private != "-" && ($0 ~ "^" private "}" || $0 ~ "^" private " (public|protected):") { private = "-" }
{ line[FNR] = private == "-" ? as_cpp($0) : "" }
BEGIN { private = "-" }
END {
  for (i = 1; i <= FNR; i++) {
    if (!is_comment(i)) {
      write_line(line[i])
      continue
    }
    last = i
    while (is_comment(last + 1)) last++
    if (i == 1 && FILENAME ~ /\/c\//) {
      write_block(1, last - 1)
      print "/// \\file"
    } else if (line[last + 1] ~ /[^ ]/ && line[last + 1] !~ /^ *(}|#|(public|private|protected):)/) write_block(i, last)
    else for (k = i; k <= last; k++) print line[k]
    i = last
  }
}
