package storecopy

// CopyStore is Copy with batches of another size.
var CopyStore = copyStore
