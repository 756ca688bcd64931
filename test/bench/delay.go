package main

import (
	"bytes"
	"context"
	"net"
	"time"
)

// inTransit is the number of chunks that one direction of a delayed connection holds.
const inTransit = 1024

// delayed listens on an address of its own and connects to target, as a network does that needs the delay in each
// direction. It runs until ctx ends.
func delayed(ctx context.Context, target string, delay time.Duration) (addr string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // it has nothing to lose
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
			if err != nil {
				_ = client.Close() // the client sees a lost connection
				continue
			}
			context.AfterFunc(ctx, func() { _ = client.Close() })
			go deliverLate(client, server, delay)
			go deliverLate(server, client, delay)
		}
	}()
	return l.Addr().String(), nil
}

// chunk is what was read at once, with the time at which it arrives.
type chunk struct {
	bytes []byte
	due   time.Time
}

// deliverLate copies one direction until one side ends, and then closes the other one.
func deliverLate(from, to net.Conn, delay time.Duration) {
	line := make(chan chunk, inTransit)
	go func() {
		defer func() { _ = to.Close() }() // from has ended
		for c := range line {
			<-time.After(time.Until(c.due))
			if _, err := to.Write(c.bytes); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(line)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			line <- chunk{bytes.Clone(buffer[:n]), time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}
