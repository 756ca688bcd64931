package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestErrors_NameTheNextStep: the code gives the caller the next step, and no error contains text from the
// disk.
func TestErrors_NameTheNextStep(t *testing.T) {
	boom := errors.New("/var/lib/hawser/000017.sst: boom")
	for name, c := range map[string]struct {
		err  error
		code transport.Code
		next transport.NextStep
	}{
		"closed":         {fmt.Errorf("commit: %w", store.ErrClosed), transport.CodeUnavailable, transport.NextBackOff},
		"another backup": {store.ErrBackup, transport.CodeOverloaded, transport.NextBackOff},
		"read-only":      {fmt.Errorf("%w: %w", store.ErrReadOnly, boom), transport.CodeUnavailable, transport.NextBackOff},
		"no room":        {fmt.Errorf("%w: %w", store.ErrNoSpace, boom), transport.CodeOverloaded, transport.NextBackOff},
		"no database":    {fmt.Errorf("%w: %w", store.ErrUnavailable, boom), transport.CodeUnavailable, transport.NextBackOff},
		"a bug":          {boom, transport.CodeInternal, transport.NextBackOff},
		"an answer":      {fmt.Errorf("so: %w", Invalid("name", "it is wrong", "")), transport.CodeInvalid, transport.NextStop},
	} {
		e := Store(c.err)
		if e.Code != c.code || e.Next != c.next || e.Next == transport.NextBackOff && e.Delay < RetryAfter {
			t.Errorf("%s: %+v", name, e)
		}
		if strings.Contains(e.Message+e.Hint, "boom") {
			t.Errorf("%s: the caller gets %q", name, e.Message)
		}
		if errors.Is(c.err, boom) != errors.Is(e, boom) {
			t.Errorf("%s: the log would lack the cause of %v", name, e)
		}
	}
}

// TestStore_LowOnSpace: a publish that is rejected for lack of space does not delay other publishes of its
// source, which may be deletions.
func TestStore_LowOnSpace(t *testing.T) {
	e := Store(fmt.Errorf("%w: 3 MiB free", store.ErrLow))
	if e.Code != transport.CodeOverloaded || !e.Full || e.Delay != 0 || !transport.Retryable(e) {
		t.Errorf("%+v", e)
	}
}

// TestCallerGone_ByItsDeadlineOrNot: the error for a caller past its deadline asks it to retry. The error for a
// caller that disconnected has no retry delay.
func TestCallerGone_ByItsDeadlineOrNot(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	<-late.Done()
	if e := CallerGone(late); e.Code != transport.CodeDeadline || e.Next != transport.NextBackOff || e.Delay != RetryAfter {
		t.Errorf("late: %+v", e)
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if e := CallerGone(left); e.Code != transport.CodeUnavailable || !errors.Is(e, context.Canceled) {
		t.Errorf("left: %+v", e)
	}
}

// TestDecode_ErrorNamesField: an invalid event or payload is an error of the publisher. The error names the
// attribute if one is wrong.
func TestDecode_ErrorNamesField(t *testing.T) {
	ack := func(epoch string) *Event {
		e, err := codec.NewAck(codec.SyncParams{ID: "1", Source: "s", Time: time.Unix(1000, 0)}, codec.Ack{Cursor: codec.Cursor{StoreID: epoch, Incarnation: "t", Revision: 7}})
		if err != nil {
			t.Fatal(err)
		}
		return &Event{
			From: identity.Identity{Role: identity.Source, Name: "s"},
			Env:  &codec.Envelope{RawType: e.Type(), ContentType: e.DataContentType(), Data: e.Data()},
		}
	}
	if a, err := Decode(ack("e"), codec.ParseAck); err != nil || a.Cursor.Revision != 7 {
		t.Errorf("an ack is %+v, %v", a, err)
	}
	var refused *transport.Error
	if _, err := Decode(ack("of/two"), codec.ParseAck); !errors.As(err, &refused) || refused.Code != transport.CodeInvalid || refused.Attribute != "data" {
		t.Errorf("a cursor that is none: %v", err)
	}
	if _, err := Decode(&Event{Env: &codec.Envelope{}}, codec.ParseAck); !errors.As(err, &refused) || refused.Code != transport.CodeInvalid || refused.Next != transport.NextStop {
		t.Errorf("an event of another type: %v", err)
	}
}
