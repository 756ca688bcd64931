package store

import (
	"strconv"
	"strings"
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

// problem says what makes the op invalid, "" when nothing does.
func (op *Op) problem() string {
	required := []struct{ what, value string }{
		{"group of the data type", op.Key.DataType.Group},
		{"version of the data type", op.Key.DataType.Version},
		{"resource of the data type", op.Key.DataType.Resource},
		{"cluster", op.Key.Cluster},
		{"resource id", op.Key.ResourceID},
	}
	for _, r := range required {
		if r.value == "" {
			return r.what + " is empty"
		}
		if p := keyPartProblem(r.what, r.value); p != "" {
			return p
		}
	}
	if p := keyPartProblem("owner", op.Owner); p != "" {
		return p
	}
	if p := keyPartProblem("name", op.Name); p != "" {
		return p
	}
	return op.kindProblem()
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
	case op.Kind < PutSpec || op.Kind > Adopt:
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
