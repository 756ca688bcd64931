// Package denylist lists the clients that the broker rejects although their certificates are valid. An operator
// denies identities, and single certificates by their serial numbers. A hub denies the certificates of a
// cluster that were issued before a time. The store keeps all entries, over restarts and in backups.
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

// Subject is an identity, or a certificate by its serial number in hexadecimal digits. Exactly one field is
// set.
type Subject struct {
	Identity identity.Identity
	Serial   string
}

// String returns the form that [ParseSubject] parses.
func (s Subject) String() string {
	if s.Serial != "" {
		return s.Serial
	}
	return s.Identity.String()
}

// maxSubject is the maximum length of a subject, in bytes. The longest cluster name needs less.
const maxSubject = 512

// ParseSubject parses ROLE/NAME, or a serial number in hexadecimal digits, with or without colons, as openssl
// prints it. The error describes the problem.
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
			return Subject{}, fmt.Errorf("%q has no valid name: use ROLE/NAME, for example agent/cluster1", s)
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

// Denial is one denied subject.
type Denial struct {
	Subject Subject `json:"-"`
	// By is the operator that denied it, At the time, and Reason the operator's reason.
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// Store keeps bookmarks, as store.Store does.
type Store interface {
	SetBookmarks(ctx context.Context, set map[string][]byte) error
	Bookmarks(prefix string) map[string][]byte
}

// prefix is the prefix of the bookmarks of denials.
const prefix = "denied/"

// earliestPrefix is the prefix of the bookmarks of earliest issue times.
const earliestPrefix = "earliest/"

// List is the denylist. Its methods are safe for concurrent use.
type List struct {
	store Store

	writing sync.Mutex // held during a change, until all callbacks have returned

	mu     sync.RWMutex
	denied map[Subject]Denial
	// earliest maps clusters to their earliest issue times.
	earliest map[string]time.Time
	changed  []func()
}

// New loads the list from a store. The error names an invalid entry.
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

// OnChange registers f, which is called after each change, before the caller of the change gets its answer.
func (l *List) OnChange(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// Of returns the denial of an identity, or of its certificate. It returns false if there is none.
func (l *List) Of(id identity.Identity, serial string) (Denial, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if d, ok := l.denied[Subject{Identity: id}]; ok {
		return d, true
	}
	d, ok := l.denied[Subject{Serial: serial}]
	return d, ok && serial != ""
}

// Earliest returns the issue time from which on certificates of a cluster are valid. It returns zero if there
// is no such time.
func (l *List) Earliest(cluster string) time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.earliest[cluster]
}

// All returns the denials, sorted by the text of their subjects.
func (l *List) All() []Denial {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.SortedFunc(maps.Values(l.denied), func(a, b Denial) int { return cmp.Compare(a.Subject.String(), b.Subject.String()) })
}

// Deny adds a denial. Errors are those of the store.
func (l *List) Deny(ctx context.Context, d Denial) error {
	value, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return l.set(ctx, map[string][]byte{prefix + d.Subject.String(): value}, func() { l.denied[d.Subject] = d })
}

// Allow removes a denial. It returns false if there was none. Errors are those of the store.
func (l *List) Allow(ctx context.Context, s Subject) (bool, error) {
	known := false
	err := l.set(ctx, map[string][]byte{prefix + s.String(): nil}, func() {
		_, known = l.denied[s]
		delete(l.denied, s)
	})
	return known, err
}

// Raise sets the earliest issue times of clusters. It never replaces a time by an earlier one. Errors are those
// of the store.
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

// write writes bookmarks, calls apply and then the callbacks. The caller holds writing.
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
