package sessionfence_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/sessionfence"
)

func TestPresenceOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	ago := func(minutes float64) time.Time { return now.Add(-time.Duration(minutes * float64(time.Minute))) }
	never := time.Time{}
	for _, c := range []struct {
		name                string
		lastSeen, listening time.Time
		goodbye             bool
		want                sessionfence.ConnectionState
	}{
		{"seen just now", now, ago(60), false, sessionfence.Connected},
		{"seen less than five minutes ago", ago(4.99), ago(60), false, sessionfence.Connected},
		{"not seen for five minutes", ago(5), ago(60), false, sessionfence.Disconnected},
		{"not seen since we came back a minute ago", ago(60), ago(1), false, sessionfence.Unknown},
		{"not seen since we came back five minutes ago", ago(60), ago(5), false, sessionfence.Disconnected},
		{"never seen, and we came a minute ago", never, ago(1), false, sessionfence.Unknown},
		{"never seen for five minutes", never, ago(5), false, sessionfence.Disconnected},
		{"seen at the moment when we came", ago(1), ago(1), false, sessionfence.Connected},
		{"disconnected at the broker", ago(1), ago(60), true, sessionfence.Disconnected},
		{"goodbye, and never seen", never, ago(1), true, sessionfence.Disconnected},
		{"a clock that went back", ago(-10), ago(60), false, sessionfence.Connected},
		{"a clock that went back before it was seen", ago(60), ago(-10), false, sessionfence.Unknown},
	} {
		if got := sessionfence.ConnectionStateOf(now, c.lastSeen, c.listening, c.goodbye); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAgents_ListsAll(t *testing.T) {
	all := sessionfence.Agents()
	now := time.Unix(1<<31, 0)
	for _, hawser := range []bool{false, true} {
		for _, ago := range []time.Duration{-time.Hour, 0, 5 * time.Minute, time.Hour, 24 * time.Hour, 1000 * time.Hour} {
			if a := sessionfence.AgentOf(now, now.Add(-ago), hawser); !slices.Contains(all, a) {
				t.Errorf("%v is not listed", a)
			}
		}
	}
	if len(all) != 9 || !slices.Contains(all, sessionfence.AgentOf(now, time.Time{}, true)) {
		t.Errorf("listed are %v", all)
	}
}
