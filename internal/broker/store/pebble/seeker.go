package pebble

import (
	"bytes"
	"errors"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// seeker is [get] for many keys: one iterator for each kind, made once, finds
// them several times faster, and fastest in key order.
type seeker struct {
	r       engine.Reader
	failure *failure
	its     map[byte]*engine.Iterator
}

func newSeeker(r engine.Reader, f *failure) *seeker {
	return &seeker{r: r, failure: f, its: make(map[byte]*engine.Iterator)}
}

// close must be called before what is read is closed.
func (s *seeker) close() error {
	var errs []error
	for kind, it := range s.its {
		if err := it.Close(); err != nil {
			errs = append(errs, s.failure.broken([]byte{kind}, err))
		}
	}
	return errors.Join(errs...)
}

// get returns the body of a value; it is valid until the next call.
func (s *seeker) get(key []byte) (body []byte, ok bool, err error) {
	it := s.its[key[0]]
	if it == nil {
		if it, err = s.r.NewIter(&engine.IterOptions{LowerBound: key[:1], UpperBound: after(key[:1])}); err != nil {
			return nil, false, s.failure.broken(key, err)
		}
		s.its[key[0]] = it
	}
	if !it.SeekGE(key) || !bytes.Equal(it.Key(), key) {
		if err := it.Error(); err != nil {
			return nil, false, s.failure.broken(key, err)
		}
		return nil, false, nil
	}
	v, err := it.ValueAndErr()
	if err == nil {
		body, err = unseal(key, v)
	}
	if err != nil {
		return nil, false, s.failure.broken(key, err)
	}
	return body, true, nil
}

// meta returns nil when there is no record.
func (s *seeker) meta(k store.Key) (*store.Meta, error) {
	key := recordKey(keyMeta, k)
	body, ok, err := s.get(key)
	if err != nil || !ok {
		return nil, err
	}
	m, err := decodeMeta(k, body)
	if err != nil {
		return nil, s.failure.broken(key, damage(key, err.Error()))
	}
	return m, nil
}
