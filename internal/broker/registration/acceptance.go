package registration

import (
	"context"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// bookmarkPrefix is the prefix of the bookmarks of accepted clusters in the store.
const bookmarkPrefix = "accepted/"

// Follow applies changes of the accepted clusters in the store, which another broker may have saved.
func (r *Service) Follow(all []store.Change) error {
	for i := range all {
		cluster, ok := strings.CutPrefix(all[i].Key.ResourceID, bookmarkPrefix)
		if all[i].Part != store.BookmarkPart || !ok {
			continue
		}
		_, accepted := r.cfg.Store.Bookmark(all[i].Key.ResourceID) // the change may be older than the last save
		switch changed := r.cache.applyStored(cluster, accepted); {
		case changed && accepted:
			r.agents.wakeCluster(cluster)
		case changed:
			r.withdraw(cluster)
		}
	}
	return nil
}

const (
	// savedAtOnce is the maximum number of changes in one write to the store.
	savedAtOnce = 1000
	// saveAgain is the pause before the next attempt after the store failed. saveEvery is that without a failure.
	saveAgain, saveEvery = time.Second, time.Hour
)

// save stores changes of the accepted clusters until ctx ends. Then it stores the last ones, within
// DrainTimeout.
func (r *Service) save(ctx context.Context) error {
	for wait := saveAgain; taskgroup.WaitFor(ctx, r.unsaved, wait); {
		wait = saveEvery
		if err := r.saveChanges(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Log.Warn("accepted clusters were not saved; trying again", "error", err)
			wait = saveAgain
		}
	}
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.DrainTimeout)
	defer stop()
	if err := r.saveChanges(last); err != nil {
		r.cfg.Log.Warn("accepted clusters were not saved; the source reports them again", "error", err)
	}
	return nil
}

// saveChanges stores all unsaved changes. On an error the failed ones stay unsaved.
func (r *Service) saveChanges(ctx context.Context) error {
	for {
		taken := r.cache.takeUnsaved(savedAtOnce)
		if len(taken) == 0 {
			return nil
		}
		set := make(map[string][]byte, len(taken))
		for cluster, is := range taken {
			set[bookmarkPrefix+cluster] = nil
			if is {
				set[bookmarkPrefix+cluster] = []byte("1")
			}
		}
		if err := store.WriteBookmarks(ctx, r.cfg.Store, set); err != nil {
			r.cache.putBack(taken)
			return err
		}
		r.cache.saved()
	}
}
