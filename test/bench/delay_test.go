package main

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestDelayed: each direction takes the delay, chunks do not wait for each other, and an end reaches the other side.
func TestDelayed(t *testing.T) {
	const delay, chunks = 50 * time.Millisecond, 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { // an echo service for one connection
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c) // until the client ends
			_ = c.Close()
		}
	}()
	addr, err := delayed(t.Context(), l.Addr().String(), delay)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range chunks {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadFull(c, make([]byte, chunks)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*delay || took > chunks*delay {
		t.Errorf("the echo took %s, want at least %s, and not that for each chunk", took, 2*delay)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the connection", err)
	}
}
