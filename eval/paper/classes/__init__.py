"""Images and tables: classes that a network knows, classes that it learns, and the same scheduler between them.

worlds    the data sets: which classes are old, which network, how it is trained, and how long
sources   the files: idx, CIFAR's binary version, CSV, the hub, and scikit-learn's own
splits    what is trained on, the old first, and what is asked
networks  two blocks of convolution and pooling, or three layers of a perceptron
entries   who takes part
update    one loop: draw, train, review
ewc       elastic weight consolidation: the diagonal Fisher information, and the penalty
cells     one entry with one seed, kept whole in a file
table     the paper's figures beside ours, and differences seed by seed
picture   the same, drawn
"""
