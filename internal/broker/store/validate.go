package store

import (
	"cmp"
	"errors"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// maxKeyPart bounds what becomes part of a storage key, in bytes. Kubernetes
// names have at most 253.
const maxKeyPart = 1024

// nameOf returns the name a spec is held under.
func nameOf(op *Op) string {
	if op.Name == "" {
		return op.Key.ResourceID
	}
	return op.Name
}

// CheckPlace says what makes a data type or a cluster impossible to store, nil
// when nothing does. Engines call it in MarkSubscribed.
func CheckPlace(dt codec.DataType, cluster string) error {
	if p := placeProblem(dt, cluster); p != "" {
		return errors.New("store: " + p)
	}
	return nil
}

func placeProblem(dt codec.DataType, cluster string) string {
	return cmp.Or(
		requiredProblem("group of the data type", dt.Group), requiredProblem("version of the data type", dt.Version),
		requiredProblem("resource of the data type", dt.Resource), requiredProblem("cluster", cluster),
	)
}

// CheckSince says why Since cannot answer, nil when it can. Engines call it.
func CheckSince(s Scope, part Part) error {
	switch {
	case part == SpecPart && s.Cluster == "":
		return errors.New("store: changed specs are those of a cluster, and the scope names none")
	case part == StatusPart && s.Owner == "":
		return errors.New("store: changed statuses are those of an owner, and the scope names none")
	case part != SpecPart && part != StatusPart:
		return errors.New("store: records have no part " + strconv.Itoa(int(part)))
	default:
		return nil
	}
}

// problem says what makes the op invalid, "" when nothing does.
func (op *Op) problem() string {
	return cmp.Or(
		placeProblem(op.Key.DataType, op.Key.Cluster), requiredProblem("resource id", op.Key.ResourceID),
		keyPartProblem("owner", op.Owner), keyPartProblem("name", op.Name), op.kindProblem(),
	)
}

func requiredProblem(what, value string) string {
	if value == "" {
		return what + " is empty"
	}
	return keyPartProblem(what, value)
}

func keyPartProblem(what, value string) string {
	switch {
	case len(value) > maxKeyPart:
		return what + " is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	case strings.IndexByte(value, 0) >= 0:
		return what + " contains a zero byte"
	default:
		return ""
	}
}

func (op *Op) kindProblem() string {
	needsOwner := op.Kind == PutSpec || op.Kind == Acked || op.Kind == Adopt
	needsEvent := op.Kind == PutStatus || op.Kind == PutSpec && !op.Deleting
	switch {
	case op.Kind < PutSpec || op.Kind > TakeOver:
		return "unknown kind " + strconv.Itoa(int(op.Kind))
	case needsOwner && op.Owner == "":
		return "owner is empty"
	case op.Version < 0:
		return "version is negative"
	case needsEvent && len(op.Event) == 0:
		return "event is empty"
	case len(op.StatusHash) > maxKeyPart:
		return "status hash is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	case len(op.Sequence) > maxKeyPart:
		return "sequence id is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	default:
		return ""
	}
}

// MaxBookmark bounds the value of a bookmark, in bytes.
const MaxBookmark = 4096

// CheckBookmarks says what makes bookmarks impossible to store, nil when nothing
// does. Engines call it in SetBookmarks.
func CheckBookmarks(set map[string][]byte) error {
	for name, value := range set {
		switch p := requiredProblem("name of a bookmark", name); {
		case p != "":
			return errors.New("store: " + p)
		case len(value) > MaxBookmark:
			return errors.New("store: bookmark " + strconv.Quote(name) + " is longer than " + strconv.Itoa(MaxBookmark) + " bytes")
		}
	}
	return nil
}
