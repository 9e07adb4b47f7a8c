# bars.awk: draws bars as SVG, light or dark as the reader has it. Reads lines of fields that | separates:
#   picture|TITLE            what a screen reader says
#   group|TITLE|UNIT         the bars below it; the longest has the width of the picture
#   bar|NAME|VALUE           Tutti's have the colour of the house
#   text|TITLE|LETTERS       a line of letters in place of bars
# Lines are drawn from top to bottom.
BEGIN { FS = "|"; y = -14 }

function escaped(text) {
  gsub(/&/, "\\&amp;", text)
  gsub(/</, "\\&lt;", text)
  return text
}

function draw(format, a, b, c, d) { body = body "  " sprintf(format, a, b, c, d) "\n" }

function draw_group(i, width) {
  for (i = 1; i <= bars; ++i) {
    y += 26
    width = 400 * value[i] / most
    draw("<text class=\"name\" x=\"190\" y=\"%d\">%s</text>", y, name[i])
    draw("<rect class=\"%s\" x=\"200\" y=\"%d\" width=\"%.1f\" height=\"16\" rx=\"2\"/>", name[i] ~ /^Tutti/ ? "ours" : "theirs", y - 13, width)
    draw("<text class=\"value\" x=\"%.1f\" y=\"%d\">%s</text>", 206 + width, y, value[i] unit)
  }
  bars = most = 0
}

function draw_title(title) {
  y += 42
  draw("<text class=\"title\" x=\"20\" y=\"%d\">%s</text>", y, escaped(title))
}

$1 == "picture" { picture = escaped($2) }
$1 == "group" {
  draw_group()
  draw_title($2)
  unit = $3 == "" ? "" : " " $3
}
$1 == "bar" {
  name[++bars] = escaped($2)
  value[bars] = $3
  if ($3 + 0 > most) most = $3 + 0
}
$1 == "text" {
  draw_group()
  draw_title($2)
  y += 22
  draw("<text x=\"20\" y=\"%d\" font-family=\"ui-monospace, monospace\" font-size=\"12\">%s</text>", y, escaped($3))
}
END {
  draw_group()
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 %d\" font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\">\n", y + 16
  print "  <title>" picture "</title>"
  print "  <style>"
  print "    text { fill: #1f2328 } .title { font-weight: 600 } .name { text-anchor: end } .theirs { fill: #afb8c1 } .ours { fill: #0a7d5c }"
  print "    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .theirs { fill: #57606a } .ours { fill: #2fbf8f } }"
  print "  </style>"
  printf "%s", body
  print "</svg>"
}
