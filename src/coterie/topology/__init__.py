"""Who can hear whom: mixes among neighbours alone, as clients without a server would make them."""
