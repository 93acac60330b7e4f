package plugin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is a line of the drivers' journal. The journal is the truth about when claims held devices.
type Event struct {
	Time      time.Time
	Prepared  bool // False if the claim was unprepared.
	Driver    string
	UID       types.UID
	Namespace string
	Name      string
	Devices   []resourceapi.DeviceRequestAllocationResult `json:",omitempty"` // Only of a prepared claim.
}

// journal appends events to a file. The file survives restarts of the driver.
type journal struct {
	path string
	mu   sync.Mutex
}

func (j *journal) write(e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode a line of the journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	file, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

// ReadJournal returns the events of a journal in order.
func ReadJournal(path string) ([]Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	defer file.Close()
	var events []Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("decode line %d of the journal: %w", len(events)+1, err)
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return events, nil
}
