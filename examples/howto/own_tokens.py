"""Text as token numbers: whole numbers stay whole numbers, and the model begins with an embedding."""

import numpy as np
from torch import nn

import coterie as ct

TEXTS = {
    "sport": ["the team won the match", "a late goal and a red card", "the coach praised the keeper"],
    "weather": ["rain in the north tonight", "a warm and sunny day", "snow and wind from the coast"],
}
LONGEST = 7
words = sorted({word for texts in TEXTS.values() for text in texts for word in text.split()})
number = {word: place for place, word in enumerate(words, start=1)}  # 0 fills up


def tokens(text):
    """The numbers of a text's words, filled up to the same length."""
    listed = [number[word] for word in text.split()]
    return listed + [0] * (LONGEST - len(listed))


pairs = [(tokens(text), topic) for topic, texts in TEXTS.items() for text in texts] * 20
x, y = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


class BagOfWords(nn.Module):
    """The mean of the words' vectors, and a classifier on it."""

    def __init__(self, shape, classes):
        super().__init__()
        self.words = nn.Embedding(len(words) + 1, 8)
        self.classifier = nn.Linear(8, classes)

    def forward(self, tokens):
        return self.classifier(self.words(tokens).mean(1))


data = ct.from_arrays(x, y, keep_dtype=True, name="texts")
print(data)
result = ct.Experiment(
    "fedper", data, ct.Dirichlet(clients=4, alpha=1.0), model=BagOfWords, classifier="classifier", rounds=8, lr=0.5,
    threads=1,
).run()  # fmt: skip
print(f"{result.accuracy().received.mean['last']:.2f}")
