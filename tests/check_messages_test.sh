#!/bin/sh
# scripts/check-messages on a small tree: messages that the sources print pass, and each that they do not print is named with its line.
set -eu
check=$(cd "$(dirname "$0")/.." && pwd)/scripts/check-messages
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
mkdir -p "$tree/tutti" "$tree/scripts" "$tree/docs"

cat >"$tree/tutti/port.cc" <<'END'
// A comment says "nobody prints these words".
std::string_view to_string(ErrorKind) { return "Overloaded"; }
if (text.find('"') > 0) fail(ErrorKind::Overloaded, "port {} is in use by "
                                 "another program: choose {} one", port, "a \"free\"");
END
cat >"$tree/tutti/port_test.cc" <<'END'
const char* text = "words of a test alone";
END
cat >"$tree/scripts/setup" <<'END'
#!/bin/sh
echo "setup: there is no apt here; install" \
  "these packages"
END

expect() { # exit code, text that must be printed, messages...
  wanted=$1 text=$2
  shift 2
  {
    echo 'A page, in which "no such words" are quoted.'
    echo '```message'
    printf '%s\n' "$@"
    echo '```'
  } >"$tree/docs/page.md"
  status=0
  printed=$("$check" "$tree" 2>&1) || status=$?
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$printed" | grep -qF -- "$text"; then
    echo "FAILED: wanted exit code $wanted and '$text', got $status and:"
    printf '%s\n' "$printed"
    failures=$((failures + 1))
  fi
}

expect 0 '' 'Overloaded: port <2222> is in use by another program: choose <...>'
expect 0 '' 'setup: there is no apt here; install these packages' 'port <2222> is in use by another program'
expect 1 "docs/page.md:3: no source prints 'is in use by a program'" 'port <2222> is in use by a program'
expect 1 "docs/page.md:4: no source prints 'Overload'" 'port <2222> is in use by another program' 'Overload: port <2222> is in use by another'
expect 1 "no source prints 'nobody prints these words'" 'nobody prints these words'
expect 1 "no source prints 'words of a test alone'" 'words of a test alone'
expect 1 'three words that do not vary' '<port 2222> is in <use>'
rm "$tree/docs/page.md"
"$check" "$tree" 2>/dev/null && failures=$((failures + 1))

[ "$failures" -eq 0 ]
