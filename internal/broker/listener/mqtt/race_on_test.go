//go:build race

package mqtt_test

// raceDetector: the program is larger than it is.
const raceDetector = true
