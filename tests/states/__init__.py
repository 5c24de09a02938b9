"""States that older versions of the library have written, and the script that made them."""
