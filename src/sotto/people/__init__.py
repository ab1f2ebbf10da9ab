"""People arrive one after the other, and each one's trajectory helps to make the next policy."""
