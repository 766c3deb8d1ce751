"""python -m abbe"""

from .cli import main

main()
