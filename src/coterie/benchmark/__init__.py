"""The benchmark: methods on sets with natural clients, all tuned alike and scored as clients would use them."""
