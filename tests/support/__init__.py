"""What tests of several rooms share: small models, runs, processes to kill, made-up measurements."""
