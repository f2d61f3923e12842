"""What stands before most text models: from a text to the ids that the model was trained with.

TEXT BYTES [1], UTF-8 -> IDS INT64 [n], MASK INT64 [n] (1: a token, 0: behind the end), TOKENS BYTES [n]

Words are cut into the longest pieces that the vocabulary has, as WordPiece does: "trains" is "train", "##s".
The vocabulary is a file beside this one, a token a line, whose number is its id. A text that has more tokens
than n, which config.pbtxt says, is cut off.
"""

import os
import re

import numpy as np

START, END, UNKNOWN, PAD = "[CLS]", "[SEP]", "[UNK]", "[PAD]"


class Model:
    def initialize(self, config):
        path = os.path.join(config["directory"], config["parameters"].get("vocabulary", "vocabulary.txt"))
        with open(path, encoding="utf-8") as file:
            self.ids = {token: number for number, token in enumerate(file.read().split())}
        if missing := {START, END, UNKNOWN, PAD} - self.ids.keys():
            raise ValueError(f"{path} has no {', '.join(sorted(missing))}")
        self.length = config["outputs"][0]["dims"][0]
        print(f"tokenizer: {len(self.ids)} tokens")

    def execute(self, inputs):
        texts = inputs["TEXT"][:, 0]  # [rows, 1] of bytes
        tokens = np.full((len(texts), self.length), PAD, object)
        for row, text in enumerate(texts):
            found = [START, *self.tokens_of(text.decode("utf-8", "replace"))][: self.length - 1] + [END]
            tokens[row, : len(found)] = found
        ids = np.vectorize(self.ids.get, otypes=[np.int64])(tokens)
        return {"IDS": ids, "MASK": (tokens != PAD).astype(np.int64), "TOKENS": tokens}

    def tokens_of(self, text):
        return [token for word in re.findall(r"\w+|[^\w\s]", text.lower()) for token in self.pieces(word)]

    def pieces(self, word):
        """The word in pieces, the longest first; one UNKNOWN where the vocabulary has not all of them."""
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.ids), None)
            if end is None:
                return [UNKNOWN]
            found.append(prefix + word[start:end])
            start = end
        return found
