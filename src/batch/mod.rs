//! The byte map of one batch file, and one encoder per format.
