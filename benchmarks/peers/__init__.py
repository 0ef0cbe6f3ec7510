"""General compressors and llama.cpp, each as a coder of sessions to compare with."""
