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

	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/store"
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

// Store keeps bookmarks.
type Store interface {
	Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error)
	Bookmark(name string) (store.Bookmark, bool)
	Bookmarks(prefix string) map[string][]byte
}

// Feed passes the changes of the store to the list.
type Feed interface {
	// Add adds the list to the parts that follow the changes.
	Add(changefeed.Part)
	// Await waits until the list has followed the changes up to a revision.
	Await(ctx context.Context, revision uint64) error
}

// prefix is the prefix of the bookmarks of denials.
const prefix = "denied/"

// earliestPrefix is the prefix of the bookmarks of earliest issue times.
const earliestPrefix = "earliest/"

// List is the denylist, as the store has it. It follows the changes of the store: those that this broker made,
// and those of other brokers. Its methods are safe for concurrent use.
type List struct {
	store Store
	feed  Feed

	mu     sync.RWMutex
	denied map[Subject]Denial
	// earliest maps clusters to their earliest issue times.
	earliest map[string]time.Time
	changed  []func()
}

// New loads the list from a store and adds it to the feed. The error names an invalid entry.
func New(s Store, f Feed) (*List, error) {
	l := &List{store: s, feed: f, denied: map[Subject]Denial{}, earliest: map[string]time.Time{}}
	f.Add(l.follow)
	for _, of := range []string{prefix, earliestPrefix} {
		for name, value := range s.Bookmarks(of) {
			if _, err := l.set(name, value); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// follow applies changes of the store, and then calls the callbacks if the list changed.
func (l *List) follow(changes []store.Change) error {
	report, err := l.apply(changes)
	for _, f := range report {
		f()
	}
	return err
}

// apply applies changes, and returns the callbacks if the list changed.
func (l *List) apply(changes []store.Change) (report []func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range changes {
		if changes[i].Part != store.BookmarkPart {
			continue
		}
		switch set, err := l.set(changes[i].Key.ResourceID, changes[i].Value); {
		case err != nil:
			return nil, err
		case set:
			report = slices.Clone(l.changed)
		}
	}
	return report, nil
}

// set applies one bookmark; a nil value removes its entry. It returns false for the bookmark of another package.
// The caller holds mu.
func (l *List) set(name string, value []byte) (bool, error) {
	if text, ok := strings.CutPrefix(name, prefix); ok {
		subject, err := ParseSubject(text)
		d := Denial{Subject: subject}
		if value == nil {
			delete(l.denied, subject)
			return true, err
		}
		if err = errors.Join(err, json.Unmarshal(value, &d)); err != nil {
			return false, fmt.Errorf("denials: the store's %q: %w", name, err)
		}
		l.denied[subject] = d
		return true, nil
	}
	cluster, ok := strings.CutPrefix(name, earliestPrefix)
	if !ok {
		return false, nil
	}
	at, err := issueTime(value)
	if err != nil {
		return false, fmt.Errorf("denials: the store's %q: %w", name, err)
	}
	l.earliest[cluster] = at
	return true, nil
}

// issueTime parses the value of an earliest issue time; nil is the zero time.
func issueTime(value []byte) (time.Time, error) {
	if value == nil {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, string(value))
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

// Deny adds a denial. When it returns nil, the callbacks have been called. Errors are those of the store.
func (l *List) Deny(ctx context.Context, d Denial) error {
	value, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = l.commit(ctx, store.Op{Kind: store.SetBookmark, Name: prefix + d.Subject.String(), Value: value})
	return err
}

// Allow removes a denial. It returns false if there was none. Errors are those of the store.
func (l *List) Allow(ctx context.Context, s Subject) (bool, error) {
	outcomes, err := l.commit(ctx, store.Op{Kind: store.SetBookmark, Name: prefix + s.String()})
	return err == nil && outcomes[0].Result == store.Accepted, err
}

// Raise sets the earliest issue times of clusters. It never replaces a time by an earlier one, also if another
// broker raises at the same time. Errors are those of the store.
func (l *List) Raise(ctx context.Context, to map[string]time.Time) error {
	for {
		ops, err := l.raises(to)
		if err != nil || len(ops) == 0 {
			return err
		}
		outcomes, err := l.commit(ctx, ops...)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(outcomes, func(o store.Outcome) bool { return o.Result == store.ConditionFailed }) {
			return nil
		}
	}
}

// raises returns the ops for those times that are later than the stored ones. Each op has the condition that the
// stored time is still there.
func (l *List) raises(to map[string]time.Time) (ops []store.Op, err error) {
	for _, cluster := range slices.Sorted(maps.Keys(to)) {
		name := earliestPrefix + cluster
		b, _ := l.store.Bookmark(name)
		stored, err := issueTime(b.Value)
		if err != nil {
			return nil, fmt.Errorf("denials: the store's %q: %w", name, err)
		}
		if at := to[cluster]; at.After(stored) {
			ops = append(ops, store.Op{
				Kind: store.SetBookmark, Name: name, Value: []byte(at.UTC().Format(time.RFC3339Nano)), Conditional: true, IfRevision: b.Revision,
			})
		}
	}
	return ops, nil
}

// commit commits ops and waits until the list has followed them.
func (l *List) commit(ctx context.Context, ops ...store.Op) ([]store.Outcome, error) {
	outcomes, err := l.store.Commit(ctx, ops)
	if err != nil {
		return nil, err
	}
	for _, o := range outcomes {
		if o.Result == store.Invalid {
			return nil, errors.New("denials: " + o.Detail)
		}
	}
	return outcomes, l.feed.Await(ctx, outcomes[len(outcomes)-1].Head)
}
