package registration

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRun_SecretTaken: two processes never overwrite each other's Secret alternately.
func TestRun_SecretTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgram(t)
		p.secret.taken = true
		p.start()
		if err := <-p.done; !errors.Is(err, ErrTaken) {
			t.Errorf("got %v", err)
		}
		p.stop()
	})
}

// TestRun_SecretOfAnother: the key of another cluster, of another hub or of another program stays until an
// operator has decided. An unanswered request is not such a key.
func TestRun_SecretOfAnother(t *testing.T) {
	for want, data := range map[string]map[string][]byte{
		`the Secret s for key and certificate cannot be used: it is that of cluster "cluster2" at hub "hub1": name another`: {keyCluster: []byte("cluster2"), keyHub: []byte("hub1"), keyKey: []byte("k")},
		`it is that of cluster "cluster1" at hub "hub2": name another`:                                                      {keyCluster: []byte(cluster1), keyHub: []byte("hub2"), keyKey: []byte("k")},
		"it has a key of another program: name another":                                                                     {keyCluster: []byte(cluster1), keyKey: []byte("k")},
		"has to approve": {keyCluster: []byte("clster1"), keyHub: []byte("hub1"), keyPendingKey: []byte("k")},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProgram(t)
			p.secret.data = maps.Clone(data)
			p.start()
			sleep(time.Minute)
			p.wantWaits(want)
			if len(data[keyKey]) > 0 {
				if have, _ := p.secret.Load(t.Context()); !sameData(have, data) {
					t.Errorf("%v instead of %v", have, data)
				}
				if n := strings.Count(p.log.String(), "the registration has not begun"); n != 1 {
					t.Errorf("logged %d times", n)
				}
				if err := p.secret.Save(t.Context(), nil); err != nil {
					t.Error(err)
				}
				sleep(10 * time.Second)
				p.wantWaits("has to approve")
			}
			p.end()
		})
	}
}
