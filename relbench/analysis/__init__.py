"""Statistics of paired samples: pure functions of samples and treatments, without models, files or layout."""
