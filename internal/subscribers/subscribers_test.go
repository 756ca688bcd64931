package subscribers_test

import (
	"slices"
	"testing"

	"github.com/hawser-io/hawser/internal/subscribers"
)

type member struct {
	id, scope string
	conn      uint64
}

func (m *member) ID() string    { return m.id }
func (m *member) Scope() string { return m.scope }
func (m *member) Conn() uint64  { return m.conn }

func TestRequesters(t *testing.T) {
	r := subscribers.New[string, *member]()
	for _, m := range []*member{{"a", "east", 1}, {"b", "east", 2}, {"c", "west", 1}, {"x", "east", 2}} {
		r.Add(m)
	}
	for _, tc := range []struct {
		name, scope, id string
		conn            uint64
		want            []string
	}{
		{"the named one", "east", "a", 2, []string{"a"}},
		{"the named one of another scope", "east", "c", 1, nil},
		{"on the connection", "east", "", 2, []string{"b"}},
		{"on no connection", "east", "", 3, []string{"a", "b"}},
		{"one that may not", "east", "x", 2, nil},
	} {
		var got []string
		for _, m := range r.Requesters(tc.scope, tc.id, tc.conn, func(m *member) bool { return m.id != "x" }) {
			got = append(got, m.id)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestClose(t *testing.T) {
	r := subscribers.New[string, *member]()
	m := &member{id: "a", scope: "east"}
	r.Add(m)
	if all := r.Close(); !slices.Equal(all, []*member{m}) {
		t.Errorf("closed with %v", all)
	}
	select {
	case <-r.Empty():
		t.Error("empty with a member")
	default:
	}
	r.Remove(m)
	<-r.Empty()
	if len(r.ByID)+len(r.ByScope) != 0 || len(r.Close()) != 0 {
		t.Error("the member is still there")
	}
}
