package codec

import (
	"errors"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

func withExtension(name string, v any) Event {
	return Event{Context: &event.EventContextV1{Extensions: map[string]any{name: v}}}
}

func wantAttributeError(t *testing.T, err error, name string) {
	t.Helper()
	var a *AttributeError
	if !errors.As(err, &a) || a.Attribute != name {
		t.Errorf("error %v does not name %q", err, name)
	}
}

func TestExtensions_AbsentIsNoError(t *testing.T) {
	e := event.New()
	_, ok1, err1 := StringExtension(e, "x")
	_, ok2, err2 := IntegerExtension(e, "x")
	_, ok3, err3 := TimeExtension(e, "x")
	_, ok4, err4 := TagExtension(e)
	_, ok5, err5 := VersionExtension(e)
	n, err6 := RevisionExtension(e, ExtRevision)
	if ok1 || ok2 || ok3 || ok4 || ok5 || n != 0 {
		t.Error("an absent extension is reported")
	}
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Error(err)
	}
}

func TestExtensions_BothForms(t *testing.T) {
	if s, ok, err := StringExtension(withExtension("x", ""), "x"); s != "" || !ok || err != nil {
		t.Errorf("empty string: %q %v %v", s, ok, err)
	}
	for _, v := range []any{int32(7), "7", "7.9"} {
		if n, ok, err := IntegerExtension(withExtension("x", v), "x"); n != 7 || !ok || err != nil {
			t.Errorf("%v: %d %v %v", v, n, ok, err)
		}
	}
	for _, v := range []any{types.Timestamp{Time: testTime}, testTime.Format(time.RFC3339Nano)} {
		if at, ok, err := TimeExtension(withExtension("x", v), "x"); !at.Equal(testTime) || !ok || err != nil {
			t.Errorf("%v: %v %v %v", v, at, ok, err)
		}
	}
	tag := TagOf(true, 1, "", nil)
	if got, ok, err := TagExtension(withExtension(ExtTag, tag.String())); got != tag || !ok || err != nil {
		t.Errorf("tag: %v %v %v", got, ok, err)
	}
	if n, err := RevisionExtension(withExtension(ExtRevision, FormatRevision(1<<63)), ExtRevision); n != 1<<63 || err != nil {
		t.Errorf("revision: %v %v", n, err)
	}
	if v, ok, err := VersionExtension(withExtension(ExtResourceVersion, "0")); v != 0 || !ok || err != nil {
		t.Errorf("version: %v %v %v", v, ok, err)
	}
}

func TestExtensions_ErrorNamesAttribute(t *testing.T) {
	_, _, err := StringExtension(withExtension("x", int32(1)), "x")
	wantAttributeError(t, err, "x")
	for _, v := range []any{true, "x", "2147483648"} {
		_, _, err = IntegerExtension(withExtension("x", v), "x")
		wantAttributeError(t, err, "x")
	}
	for _, v := range []any{true, "x"} {
		_, _, err = TimeExtension(withExtension("x", v), "x")
		wantAttributeError(t, err, "x")
	}
	for _, v := range []any{int32(1), "xy"} {
		_, _, err = TagExtension(withExtension(ExtTag, v))
		wantAttributeError(t, err, ExtTag)
	}
	for _, v := range []any{int32(1), "0", "x"} {
		_, err = RevisionExtension(withExtension(ExtIfRevision, v), ExtIfRevision)
		wantAttributeError(t, err, ExtIfRevision)
	}
	for _, v := range []any{int32(-1), "-1", "x"} {
		_, _, err = VersionExtension(withExtension(ExtResourceVersion, v))
		wantAttributeError(t, err, ExtResourceVersion)
	}
}
