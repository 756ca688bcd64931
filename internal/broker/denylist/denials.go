// Package denylist says who is kept out of a broker although the certificate is a
// good one: identities, and single certificates by their serial numbers, which an
// operator names; and the certificates of a cluster that were issued before a time
// that its hub tells. The store keeps all of it, over restarts and in backups.
package denylist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hawser-io/hawser/internal/identity"
)

// Subject is who is denied: an identity, or a certificate by its serial number,
// in hexadecimal digits. One of them is set.
type Subject struct {
	Identity identity.Identity
	Serial   string
}

// String returns what [ParseSubject] takes.
func (s Subject) String() string {
	if s.Serial != "" {
		return s.Serial
	}
	return s.Identity.String()
}

// maxSubject bounds the text of a subject: the name of a cluster, and more.
const maxSubject = 512

// ParseSubject reads ROLE/NAME, or a serial number in hexadecimal digits, with or
// without colons, as openssl prints it. The error says what is wrong.
func ParseSubject(s string) (Subject, error) {
	if len(s) > maxSubject {
		return Subject{}, fmt.Errorf("%.40q… is longer than %d bytes", s, maxSubject)
	}
	if role, name, ok := strings.Cut(s, "/"); ok {
		id := identity.Identity{Role: identity.Role(role), Name: name}
		switch {
		case !slices.Contains([]identity.Role{identity.Agent, identity.Source, identity.Operator, identity.Viewer, identity.Bootstrap}, id.Role):
			return Subject{}, fmt.Errorf("%q is no role: use agent, source, operator, viewer or bootstrap", role)
		case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return Subject{}, fmt.Errorf("%q names nobody: use ROLE/NAME, as agent/cluster1", s)
		}
		return Subject{Identity: id}, nil
	}
	digits := strings.ReplaceAll(s, ":", "")
	n, ok := new(big.Int).SetString(digits, 16)
	if !ok || n.Sign() <= 0 || strings.ContainsAny(digits, "+_") {
		return Subject{}, fmt.Errorf("%q is neither ROLE/NAME, as agent/cluster1, nor a serial number in hexadecimal digits, as openssl x509 -serial prints it", s)
	}
	return Subject{Serial: n.Text(16)}, nil
}

// Denial is one subject that is kept out.
type Denial struct {
	Subject Subject `json:"-"`
	// By is the operator who did it, since At, and Reason what was said of it.
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// Store keeps small values under names, as store.Store does.
type Store interface {
	SetBookmarks(ctx context.Context, set map[string][]byte) error
	Bookmarks(prefix string) map[string][]byte
}

// prefix begins the names of denials in the store.
const prefix = "denied/"

// earliestPrefix begins those of earliest issue times.
const earliestPrefix = "earliest/"

// List is what is denied. Its methods may be called concurrently.
type List struct {
	store Store

	writing sync.Mutex // held over a change, until everybody has heard of it

	mu     sync.RWMutex
	denied map[Subject]Denial
	// earliest are the earliest issue times, by cluster.
	earliest map[string]time.Time
	changed  []func()
}

// New returns the list that a store keeps. The error names an entry that is none.
func New(s Store) (*List, error) {
	l := &List{store: s, denied: map[Subject]Denial{}, earliest: map[string]time.Time{}}
	for name, value := range s.Bookmarks(prefix) {
		subject, err := ParseSubject(strings.TrimPrefix(name, prefix))
		d := Denial{Subject: subject}
		if err = errors.Join(err, json.Unmarshal(value, &d)); err != nil {
			return nil, fmt.Errorf("denials: the store's %q: %w", name, err)
		}
		l.denied[subject] = d
	}
	for name, value := range s.Bookmarks(earliestPrefix) {
		at, err := time.Parse(time.RFC3339Nano, string(value))
		if err != nil {
			return nil, fmt.Errorf("denials: the store's %q: %w", name, err)
		}
		l.earliest[strings.TrimPrefix(name, earliestPrefix)] = at
	}
	return l, nil
}

// OnChange has f called after each change, before its caller is answered.
func (l *List) OnChange(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// Of returns why an identity, or its certificate, is denied, if it is.
func (l *List) Of(id identity.Identity, serial string) (Denial, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if d, ok := l.denied[Subject{Identity: id}]; ok {
		return d, true
	}
	d, ok := l.denied[Subject{Serial: serial}]
	return d, ok && serial != ""
}

// Earliest returns from when on certificates of a cluster count; zero: all do.
func (l *List) Earliest(cluster string) time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.earliest[cluster]
}

// All returns what is denied, in the order of its text.
func (l *List) All() []Denial {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.SortedFunc(maps.Values(l.denied), func(a, b Denial) int { return cmp.Compare(a.Subject.String(), b.Subject.String()) })
}

// Deny keeps a subject out from now on. The error is that of the store.
func (l *List) Deny(ctx context.Context, d Denial) error {
	value, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return l.set(ctx, map[string][]byte{prefix + d.Subject.String(): value}, func() { l.denied[d.Subject] = d })
}

// Allow lets a subject in again; false: it was not denied. The error is that of
// the store.
func (l *List) Allow(ctx context.Context, s Subject) (bool, error) {
	known := false
	err := l.set(ctx, map[string][]byte{prefix + s.String(): nil}, func() {
		_, known = l.denied[s]
		delete(l.denied, s)
	})
	return known, err
}

// Raise has certificates of clusters count from these times on. Where a later time holds, that
// stays. The error is that of the store.
func (l *List) Raise(ctx context.Context, to map[string]time.Time) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	set, later := map[string][]byte{}, map[string]time.Time{}
	for cluster, at := range to {
		if at.After(l.Earliest(cluster)) {
			set[earliestPrefix+cluster], later[cluster] = []byte(at.UTC().Format(time.RFC3339Nano)), at
		}
	}
	if len(later) == 0 {
		return nil
	}
	return l.write(ctx, set, func() { maps.Copy(l.earliest, later) })
}

func (l *List) set(ctx context.Context, bookmarks map[string][]byte, apply func()) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(ctx, bookmarks, apply)
}

// write writes bookmarks, then what they say. The caller writes alone.
func (l *List) write(ctx context.Context, bookmarks map[string][]byte, apply func()) error {
	if err := l.store.SetBookmarks(ctx, bookmarks); err != nil {
		return err
	}
	l.mu.Lock()
	apply()
	report := slices.Clone(l.changed)
	l.mu.Unlock()
	for _, f := range report {
		f()
	}
	return nil
}
