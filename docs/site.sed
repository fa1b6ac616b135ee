# site.sed: Markdown as the site needs it: no links to what is not in it, none to a heading of another page (Doxygen 1.9
# names headings otherwise than the places that show the files), pictures beside the pages.
s/\[([^]]*)\]\((\.\.\/)*(bench|examples|include|tests)[^)]*\)/\1/g
s/\.md#[a-z0-9-]+\)/.md)/g
s/\(docs\/([a-z-]+\.png)\)/(\1)/g
