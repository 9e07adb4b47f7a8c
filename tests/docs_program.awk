# docs_program.awk PAGE...: the C++ blocks of these pages as one source: a complete program in a namespace of its own, anything
# else as the body of a function. An ellipsis stands for what a reader fills in. Blocks with the name of a file are left out:
# tests/consumers/page_test.sh builds and runs those.
BEGIN { print "#include \"tests/test_docs_prelude.h\"\n" }
FNR == 1 { name = FILENAME; gsub(/.*\/|[^A-Za-z]/, "_", name) }
/^```cpp$/ { inside = 1; text = ""; line = FNR + 1; next }
/^```$/ && inside {
  inside = 0
  place = "#line " line " \"" FILENAME "\"\n"
  if (text ~ /int main\(/) {
    sub(/int main\(/, "int run_main(", text)
    gsub(/#include <[^\n]*>\n/, "\n", text)
    print "namespace block_" ++blocks name " {\n" place text "}"
  } else {
    print "[[maybe_unused]] static int block_" ++blocks name "(int argc, char** argv) {\n" place text ";return 0;\n}"
  }
}
inside {
  gsub(/\(\.\.\.\)/, "(;;)")
  gsub(/\{ \.\.\. \}/, "{}")
  text = text $0 "\n"
}
END { if (!blocks) exit 1; print "int main() {}" }
