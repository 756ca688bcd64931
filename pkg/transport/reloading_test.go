package transport_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/hawser-io/hawser/pkg/transport"
)

// to is the address of a Dialer that cannot connect.
type to string

func (a to) Dial(context.Context) (transport.Conn, error) { return nil, errors.New(string(a)) }

// TestReread_ReadsAgainForEachDial: with an unusable configuration the previous one stays in use, and the error
// is reported once.
func TestReread_ReadsAgainForEachDial(t *testing.T) {
	broken := errors.New("broken")
	file, made := "a", 0
	var reported []string
	r, err := transport.NewReloadingDialer(func() (string, error) {
		if file == "broken" {
			return "", broken
		}
		return file, nil
	}, func(c string) (transport.Dialer, error) {
		made++
		if c == "refused" {
			return nil, errors.New("refused")
		}
		return to(c), nil
	}, func(err error) { reported = append(reported, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ file, want string }{
		{"a", "a"}, {"b", "b"}, {"broken", "b"}, {"broken", "b"}, {"refused", "b"}, {"b", "b"}, {"broken", "b"}, {"a", "a"},
	} {
		file = step.file
		if _, err := r.Dial(t.Context()); err == nil || err.Error() != step.want || r.Current() != step.want {
			t.Errorf("with %s it dialled %v, and reports %s; want %s", step.file, err, r.Current(), step.want)
		}
	}
	if !slices.Equal(reported, []string{"broken", "refused", "broken"}) || made != 4 {
		t.Errorf("reported %q, made %d", reported, made)
	}
	if _, err := transport.NewReloadingDialer(func() (string, error) { return "", broken }, func(string) (transport.Dialer, error) { return nil, nil }, func(error) {}); !errors.Is(err, broken) {
		t.Errorf("a file that is broken at the start: %v", err)
	}
}
