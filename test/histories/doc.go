// Package histories runs clients against three brokers over one PostgreSQL, with faults, and checks what the clients
// saw. The brokers are the program cmd/broker, each a process of its own. The database is a server with a standby.
//
// Sources publish and delete works, agents receive and report, readers list the store, and all of them restart. They
// reach the brokers through proxies, and the brokers reach the database through proxies. Meanwhile brokers are killed,
// stopped, paused and cut off; the database is killed, restarted, paused, and replaced by a standby. Each call and
// each received event is a line of the trace. Package judge checks the trace when the run ends.
//
// A run does not repeat from its seed, because processes do not. Its trace is kept, and can be judged again.
package histories
