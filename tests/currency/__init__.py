"""How current the grammars are: messages of released libraries that none of them knows."""
