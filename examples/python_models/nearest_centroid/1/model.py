"""A classifier in the manner of scikit-learn, trained when it is loaded: the class of the nearest mean.

FEATURES [4] FP32 -> LABEL [1] INT64, and DISTANCES [3] FP64 to the mean of each class

The training data is measurements.csv beside this file: four numbers and the number of the class in each line.
A model that was trained elsewhere is loaded at the same place, with joblib.load for one of scikit-learn.
"""

import os

import numpy as np


class NearestCentroid:
    """fit and predict as sklearn.neighbors.NearestCentroid has them."""

    def fit(self, features, labels):
        self.classes_ = np.unique(labels)
        self.centroids_ = np.stack([features[labels == label].mean(axis=0) for label in self.classes_])
        return self

    def distances(self, features):
        return np.linalg.norm(features[:, None] - self.centroids_, axis=2)

    def predict(self, features):
        return self.classes_[self.distances(features).argmin(axis=1)]


class Model:
    def initialize(self, config):
        folder = config["directory"]
        table = np.loadtxt(os.path.join(folder, "measurements.csv"), delimiter=",", skiprows=1)
        self.classifier = NearestCentroid().fit(table[:, :-1], table[:, -1].astype(np.int64))
        print(f"{len(table)} measurements of {len(self.classifier.classes_)} classes")

    def execute(self, inputs):
        features = inputs["FEATURES"]
        distances = self.classifier.distances(features)
        labels = self.classifier.classes_[distances.argmin(axis=1)]
        return {"LABEL": labels[:, None], "DISTANCES": distances}
