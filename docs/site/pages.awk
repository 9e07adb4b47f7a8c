# pages.awk -v page=PATH NAMES PAGE: a Markdown page of the repository as the site has it. NAMES says, one a line, the page of the
# reference for each class and header, as "tutti::Trainer<TAB>classtutti_1_1Trainer.html". Links to headers lead to the reference, links to
# folders to their README.md, and the first `code` that is the name of a class becomes a link. MkDocs wants an empty line before a list or a table.
function resolved(path,   part, count, i, depth, result) {
  count = split(folder path, part, "/")
  for (i = 1; i <= count; i++) {
    if (part[i] == "..") depth--
    else if (part[i] != "" && part[i] != ".") stack[++depth] = part[i]
  }
  for (i = 1; i <= depth; i++) result = result (i > 1 ? "/" : "") stack[i]
  return result
}
function target_of(target, text,   path) {
  if (target ~ /^([a-z]+:|#)/ || target ~ / /) return target
  path = resolved(target)
  if (path in url) return up "api/" (("tutti::" text) in url ? url["tutti::" text] : url[path])
  if (path !~ /\.[a-z]+(#.*)?$/ && system("test -d '" path "'") == 0) return target "/README.md"
  return target
}
# Links of a line, outside of `code` that does not stand in a link's text.
function with_links(line,   result, at, text) {
  while (match(line, /\[[^][]*\]\([^()]*\)|`[^`]*`/)) {
    result = result substr(line, 1, RSTART - 1)
    text = substr(line, RSTART, RLENGTH)
    line = substr(line, RSTART + RLENGTH)
    if (text ~ /^`/) {
      at = substr(text, 2, length(text) - 2)
      if (at !~ /^tutti::/) at = "tutti::" at
      if (at in url && !(at in linked)) text = "[" text "](" up "api/" url[at] ")"
      linked[at]
      result = result text
    } else {
      at = index(text, "](")
      name = substr(text, 2, at - 2)
      gsub(/`|^tutti::/, "", name)
      result = result substr(text, 1, at + 1) target_of(substr(text, at + 2, length(text) - at - 2), name) ")"
    }
  }
  return result line
}
function kind_of(text) {
  if (text ~ /^ *([-*]|[0-9]+\.) /) return "list"
  if (text ~ /^\|/) return "table"
  return text ~ /^ *$/ ? "empty" : text ~ /^ / && kind == "list" ? "list" : "text"
}
BEGIN {
  folder = page
  sub(/[^\/]*$/, "", folder)
  up = folder
  gsub(/[^\/]+\//, "../", up)
}
FILENAME != page {
  split($0, field, "\t")
  url[field[1]] = field[2]
  next
}
/^ *```/ {
  code = !code
  kind = "text"
  if (code && NF == 2) print $1 " title=\"" $2 "\""
  else print
  next
}
code || /^ *<!--/ { print; next }
{
  now = kind_of($0)
  if (kind == "text" && (now == "list" || now == "table") || kind == "list" && now == "table") print ""
  kind = now == "text" && kind == "list" ? "list" : now
  print /^    / && now != "list" ? $0 : with_links($0)
}
