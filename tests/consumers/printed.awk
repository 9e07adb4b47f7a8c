# printed.awk EXPECTED PRINTED: compares what a page shows with what was printed, line by line. A line `...` of the page stands
# for any number of lines. Times, speeds, process ids, hosts and versions may differ, and so may the steps at which a task was killed or
# a checkpoint found. Prints the first line that is wrong, and fails.
function plain(line) {
  gsub(/[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\.[0-9][0-9][0-9]/, "TIME", line)
  gsub(/[0-9,]+ examples\/s/, "N examples/s", line)
  gsub(/[0-9]+:[0-9][0-9] left/, "T left", line)
  gsub(/\(host [^,)]+/, "(host H", line)
  gsub(/pid [0-9]+/, "pid N", line)
  gsub(/after [0-9.]+ s/, "after N s", line)
  gsub(/going on at step [0-9,]+/, "going on at step N", line)
  gsub(/resumed from .*ckpt-[0-9]+/, "resumed from ckpt-N", line)
  gsub(/([Tt]utti|LibTorch) [0-9.]+/, "version N", line)
  sub(/[ \t\r]+$/, "", line)
  return line
}
FILENAME == ARGV[1] { expected[++wanted] = plain($0); next }
{ printed[++have] = plain($0) }
END {
  at = 1
  for (i = 1; i <= wanted; ++i) {
    if (expected[i] == "...") {
      skipping = 1
      continue
    }
    while (skipping && at <= have && printed[at] != expected[i]) ++at
    if (at > have || printed[at] != expected[i]) {
      print "the page shows:  " expected[i]
      print "printed was:     " (at > have ? "(nothing more)" : printed[at])
      exit 1
    }
    ++at
    skipping = 0
  }
  if (at <= have && !skipping) {
    print "the page does not show:  " printed[at]
    exit 1
  }
}
