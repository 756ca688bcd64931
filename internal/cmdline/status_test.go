package cmdline

import (
	"errors"
	"fmt"
	"testing"
)

func TestStatus(t *testing.T) {
	failed := errors.New("it failed")
	for want, err := range []error{nil, failed, fmt.Errorf("more: %w", Usage(failed))} {
		if got := status(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}
