# test_scripts.py: what the scripts of bench/ and tools/ say of arguments that they must refuse.
import os
import sys

import command

SOURCE = os.path.join(command.DATA, os.pardir)


class Scripts(command.CommandTest):
    path = sys.executable

    def refuses(self, script, *arguments, says):
        self.refused(os.path.join(SOURCE, script), *arguments, parts=[says])

    def test_plot(self):
        nowhere = os.path.join(self.folder, "nowhere.jsonl")
        self.refuses("bench/plot.py", nowhere, "-o", "a.png", says=f"plot.py: {nowhere}: ")
        for text, says in (("words", "rows.jsonl:1: "), ("[1]\n{}\n", "nothing to draw")):
            self.refuses("bench/plot.py", self.file("rows.jsonl", text), "-o", "a.png", says=says)

    def test_site(self):
        self.refuses("tools/site.py", says="usage: site.py")
        self.refuses("tools/site.py", "--help", says="usage: site.py")
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    command.main()
