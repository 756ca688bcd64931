package grpc

import "testing"

// TestCost checks that many small frames cost more than one large frame.
func TestCost(t *testing.T) {
	for length, want := range map[int]int64{0: 256, 1: 257, 1 << 10: 1280, 1<<10 + 1: 4<<10 + 256, 4<<10 + 1: 16<<10 + 256, 16 << 10: 16<<10 + 256} {
		if got := cost(length); got != want {
			t.Errorf("a frame of %d bytes costs %d, want %d", length, got, want)
		}
	}
}
