package delivery

import "testing"

// FuzzParsePageToken: a page token is rejected, or is a position that means the same when it is encoded again.
func FuzzParsePageToken(f *testing.F) {
	f.Add(pageToken{revision: 7, cluster: "c1", id: "u/1"}.String())
	f.Add(pageToken{revision: 1<<64 - 1, cluster: "%"}.String())
	f.Add("")
	f.Add("1//id")
	f.Fuzz(func(t *testing.T, text string) {
		if token, ok := parsePageToken(text); ok && text != "" {
			if again, ok := parsePageToken(token.String()); !ok || again != token || token.cluster == "" {
				t.Errorf("%q is %+v, then %+v", text, token, again)
			}
		}
	})
}
