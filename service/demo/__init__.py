"""What ``headrace demo`` is made of: it finds files, extracts what the model looks at, and asks the service.

``model``     the file-type model in the ``magika`` package: where it is, what its configuration says
``features``  a file's bytes to the model's input, and the rules for files that are not worth asking about
``walk``      the files under some paths
``server``    the real service, as a child process
``classify``  many files through ModelStreamInfer at once
"""
