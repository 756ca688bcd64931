package codec

import "testing"

func TestSession_Text(t *testing.T) {
	for _, s := range []Session{{1, "a"}, {1795442048000, "0f5b6c3e-5a1b-4a5d-9d0e-000000000001"}, {1<<63 - 1, "Z"}} {
		if got, err := ParseSession(ExtSession, s.String()); err != nil || got != s {
			t.Errorf("%s is read as %+v, %v", s, got, err)
		}
	}
	for _, text := range []string{"", "1", "1.", ".a", "0.a", "01.a", "-1.a", "9223372036854775808.a", "1.a b", "1.a/b", "1.é"} {
		_, err := ParseSession(ExtSession, text)
		wantAttributeError(t, err, ExtSession)
	}
	if s := (Session{}).String(); s != "" {
		t.Errorf("no session is %q", s)
	}
	if (Session{2, "a"}).Compare(Session{1, "b"}) <= 0 || (Session{1, "a"}).Compare(Session{1, "b"}) >= 0 || (Session{1, "a"}).Compare(Session{1, "a"}) != 0 {
		t.Error("sessions are not ordered by number, then by id")
	}
	if s, err := SessionExtension(withExtension("x", "1.a"), ExtPeerSession); s != (Session{}) || err != nil {
		t.Errorf("an absent session is %+v, %v", s, err)
	}
}
