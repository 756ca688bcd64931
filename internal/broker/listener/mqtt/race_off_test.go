//go:build !race

package mqtt_test

// raceDetector is true if the race detector is on, which increases the use of memory.
const raceDetector = false
