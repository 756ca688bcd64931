// Package testkit is what tests of several packages need to run parts of Hawser
// in their own process: a certificate authority ([NewCA]) and a broker with a
// store in memory, with or without a port ([StartBroker]). Only tests import it.
package testkit
