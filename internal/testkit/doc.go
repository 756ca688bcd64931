// Package testkit has shared test helpers that run parts of Hawser in-process. They are a CA ([NewCA]) and a
// broker with a store in memory, with or without a port ([StartBroker]). [FreeAddr] is for programs beside them. Only tests
// import it.
package testkit
