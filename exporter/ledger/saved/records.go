package saved

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Moment is a time on the clock that continues over restarts of the process, in microseconds; 0:
// none.
type Moment int64

// Stamp is a time that others have seen, and that must stay exactly the same, in nanoseconds since
// 1970; 0: none.
type Stamp int64

// Never is the stamp of a total that has not been shown.
const Never Stamp = 1

// Numbers are many numbers that change at each tick, of 8 bytes each.
type Numbers []byte

// Append adds a number.
func (n Numbers) Append(v float64) Numbers {
	return binary.LittleEndian.AppendUint64(n, math.Float64bits(v))
}

// At returns the number with an index.
func (n Numbers) At(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(n[8*i:])) }

// Kind is the kind of a record: its key in [State].
type Kind uint8

// The kinds of records.
const (
	KindDevice       Kind = 1
	KindCounts       Kind = 2
	KindHeld         Kind = 3
	KindAccount      Kind = 4
	KindSums         Kind = 5
	KindFit          Kind = 6
	KindDistribution Kind = 7
	KindObserved     Kind = 8
	KindClaim        Kind = 9
	KindPod          Kind = 10
	KindPeriods      Kind = 11
	kindGone         Kind = 12
	KindDoubts       Kind = 13
	KindLives        Kind = 14
)

// State has the newest record of each kind and number. Values that change at each tick (sums, last
// readings) are apart from the others.
type State struct {
	Devices       map[uint32]Device        `cbor:"1,keyasint"`
	Counts        map[uint32]Counts        `cbor:"2,keyasint"` // of a device
	Held          map[uint32]Held          `cbor:"3,keyasint"` // of a device
	Accounts      map[uint32]Account       `cbor:"4,keyasint"`
	Sums          map[uint32]Sums          `cbor:"5,keyasint"` // of an account
	Fits          map[uint32]Fit           `cbor:"6,keyasint"` // of a claim's account
	Distributions map[uint32]*Distribution `cbor:"7,keyasint"`
	Observed      map[uint32]Observation   `cbor:"8,keyasint"` // an addition to a distribution
	Claims        map[uint32]Name          `cbor:"9,keyasint"`
	Pods          map[uint32]Name          `cbor:"10,keyasint"`
	Periods       map[uint32]Periods       `cbor:"11,keyasint"` // of a device
	Gone          map[uint32]bool          `cbor:"12,keyasint"` // an object has no records from now on
	Doubts        map[uint32]Doubts        `cbor:"13,keyasint"` // of a claim's account
	Lives         map[uint32]Lives         `cbor:"14,keyasint"` // of a driver
}

// Series is the identity of a value. Quantity is the name in the catalogue.
type Series struct {
	Quantity string  `cbor:"1,keyasint,omitempty"`
	Label0   string  `cbor:"2,keyasint,omitempty"`
	Label1   string  `cbor:"3,keyasint,omitempty"`
	Source   string  `cbor:"4,keyasint,omitempty"`
	Born     Stamp   `cbor:"5,keyasint,omitempty"`
	Shown    Stamp   `cbor:"6,keyasint,omitempty"`
	Value    float64 `cbor:"7,keyasint,omitempty"` // further keys: see Counter and Meter
	Label2   string  `cbor:"60,keyasint,omitempty"`
	Computed uint8   `cbor:"61,keyasint,omitempty"` // earlier programs had it as text, in Source
}

// Device is a device with its counters and meters.
type Device struct {
	Driver    string    `cbor:"2,keyasint,omitempty"`
	Pool      string    `cbor:"3,keyasint,omitempty"`
	Name      string    `cbor:"4,keyasint,omitempty"`
	Born      Stamp     `cbor:"5,keyasint,omitempty"`
	UUID      string    `cbor:"6,keyasint,omitempty"`
	PCI       string    `cbor:"7,keyasint,omitempty"`
	NetDev    string    `cbor:"8,keyasint,omitempty"`
	RDMA      string    `cbor:"9,keyasint,omitempty"`
	CPUs      []int     `cbor:"10,keyasint,omitempty"`
	Read      bool      `cbor:"11,keyasint,omitempty"`
	Watched   bool      `cbor:"12,keyasint,omitempty"`
	LastError Stamp     `cbor:"13,keyasint,omitempty"`
	Counters  []Counter `cbor:"14,keyasint,omitempty"` // the attributed ones first
	Meters    []Meter   `cbor:"16,keyasint,omitempty"`
	Highest   []Series  `cbor:"17,keyasint,omitempty"` // without values
}

// Counter is a counter of a device.
type Counter struct {
	Series
	Idle    float64 `cbor:"10,keyasint,omitempty"`
	Limit   float64 `cbor:"11,keyasint,omitempty"`
	Fastest float64 `cbor:"12,keyasint,omitempty"`
	Read    float64 `cbor:"13,keyasint,omitempty"`
	Widest  float64 `cbor:"14,keyasint,omitempty"`
}

// Meter is a meter of a device whose last reading is needed.
type Meter struct {
	Series
	Since   Stamp   `cbor:"8,keyasint,omitempty"`
	Idle    float64 `cbor:"9,keyasint,omitempty"`
	Doubted Point   `cbor:"10,keyasint,omitzero"`
	Left    Line    `cbor:"11,keyasint,omitzero"`
}

// Point is a value of a counter at a time.
type Point struct {
	_     struct{} `cbor:",toarray"`
	Value float64
	At    Moment
}

// Line is a line of values that the readings of a counter have left.
type Line struct {
	_        struct{} `cbor:",toarray"`
	From, To Point
	Counted  float64
}

// Counts are a device's sums, last and highest readings, in the order of its counters and meters.
type Counts struct {
	_                  struct{} `cbor:",toarray"`
	Allocated, InUse   float64
	Accrued, UsedUntil Moment
	Totals             []float64 // of each counter; if it is attributed, its unattributed part follows
	Settled            []Moment
	Values             []float64 // of each meter
	At                 []Moment
	Highest            []float64
}

// Held has the holders of a device in the time whose readings are not charged yet.
type Held struct {
	Segments []Segment `cbor:"2,keyasint,omitempty"`
}

// Segment is a time with the same holders. It ends when the next one begins.
type Segment struct {
	From        Moment           `cbor:"1,keyasint,omitempty"`
	Claims      []Part           `cbor:"2,keyasint,omitempty"`
	Pods        []Part           `cbor:"3,keyasint,omitempty"`
	Guessed     bool             `cbor:"5,keyasint,omitempty"`
	Attribution join.Attribution `cbor:"6,keyasint,omitempty"`
}

// Part is the part of a device that an account has.
type Part struct {
	_       struct{} `cbor:",toarray"`
	Account uint32   // its number
	Weight  float64
}

// Periods are the holding periods of a device.
type Periods struct {
	Periods []Period `cbor:"2,keyasint,omitempty"`
}

// Period is a time in which a pod held a device.
type Period struct {
	Namespace    string           `cbor:"1,keyasint,omitempty"` // of the claim
	Claim        string           `cbor:"2,keyasint,omitempty"`
	ClaimUID     string           `cbor:"3,keyasint,omitempty"`
	ShareID      string           `cbor:"4,keyasint,omitempty"`
	Pod          string           `cbor:"5,keyasint,omitempty"`
	PodUID       string           `cbor:"6,keyasint,omitempty"`
	Admin        bool             `cbor:"7,keyasint,omitempty"`
	Attribution  join.Attribution `cbor:"8,keyasint,omitempty"`
	From         Moment           `cbor:"9,keyasint,omitempty"`
	To           Moment           `cbor:"10,keyasint,omitempty"`
	PodNamespace string           `cbor:"11,keyasint,omitempty"`
	Older        bool             `cbor:"12,keyasint,omitempty"`
	FromEarly    time.Duration    `cbor:"13,keyasint,omitempty"` // doubts
	FromLate     time.Duration    `cbor:"14,keyasint,omitempty"`
	ToEarly      time.Duration    `cbor:"15,keyasint,omitempty"`
	ToLate       time.Duration    `cbor:"16,keyasint,omitempty"`
	Hold         uint64           `cbor:"17,keyasint,omitempty"` // 0: written by a program whose holds had no identity
}

// Account is what a claim or pod was charged for one device, except its sums.
type Account struct {
	Device    uint32 `cbor:"2,keyasint,omitempty"` // its number
	Namespace string `cbor:"3,keyasint,omitempty"`
	Name      string `cbor:"4,keyasint,omitempty"`
	OfPod     bool   `cbor:"6,keyasint,omitempty"`
	AccountFacts
	Born      Stamp    `cbor:"7,keyasint,omitempty"`
	Ended     Moment   `cbor:"8,keyasint,omitempty"`
	Matured   Stamp    `cbor:"9,keyasint,omitempty"`
	LastError Stamp    `cbor:"10,keyasint,omitempty"`
	Earlier   uint32   `cbor:"14,keyasint,omitempty"` // number of the previous account of the name
	Witnessed []Series `cbor:"15,keyasint,omitempty"` // without values
	Shown     []Stamp  `cbor:"16,keyasint,omitempty"` // when each total was first shown, or Never
	Released  *Amounts `cbor:"17,keyasint,omitempty"` // charges of accounts that are not kept any more
	// The life of a claim.
	Allocated          Stamp  `cbor:"23,keyasint,omitempty"`
	Waiting            Moment `cbor:"24,keyasint,omitempty"`
	Prepared           Moment `cbor:"25,keyasint,omitempty"`
	FirstActive        Moment `cbor:"26,keyasint,omitempty"`
	Unprepared         Moment `cbor:"27,keyasint,omitempty"`
	CountedPreparation bool   `cbor:"28,keyasint,omitempty"` // it is in the driver's distributions
	CountedActivity    bool   `cbor:"29,keyasint,omitempty"`
}

// AccountFacts are facts about an account that the ledger has in the same form.
type AccountFacts struct {
	UID     string `cbor:"5,keyasint,omitempty"`  // of the claim or pod; empty: not known yet
	Watched bool   `cbor:"11,keyasint,omitempty"` // the device's activity has been measured at some time
	// Of a pod.
	Young      bool `cbor:"12,keyasint,omitempty"` // it has held the device for less than the book's minLifetime
	Aggregated bool `cbor:"13,keyasint,omitempty"` // the account is for the young pods of a workload
	// Of a claim.
	Attribution join.Attribution `cbor:"18,keyasint,omitempty"` // the least certain way in which the device was divided
	Partial     bool             `cbor:"19,keyasint,omitempty"` // it began before the kubelet's first answer
	Closed      bool             `cbor:"20,keyasint,omitempty"` // its charges were reported
	Users       []User           `cbor:"21,keyasint,omitempty"` // the pods that used it
}

// User is a pod that used a claim.
type User struct {
	_         struct{} `cbor:",toarray"`
	Name, UID string
}

// Amounts are charges for a name.
type Amounts struct {
	Born      Stamp    `cbor:"1,keyasint,omitempty"`
	Shown     Stamp    `cbor:"2,keyasint,omitempty"`
	Values    []Series `cbor:"3,keyasint,omitempty"`
	Allocated float64  `cbor:"4,keyasint,omitempty"`
	Share     float64  `cbor:"5,keyasint,omitempty"`
	Used      float64  `cbor:"6,keyasint,omitempty"`
}

// Sums are the sums of an account, in the order of its device's attributed counters, and of its
// witnessed series.
type Sums struct {
	_                      struct{} `cbor:",toarray"`
	Allocated, Share, Used float64
	Active, UsedUntil      Moment
	Totals, Witnessed      Numbers
}

// Doubts are possible errors of an account's charges: of each total, with its measured seconds.
type Doubts struct {
	_             struct{} `cbor:",toarray"`
	Edges, Unread float64
	Totals        []Doubt
}

// Doubt is the possible error of a total.
type Doubt struct {
	_               struct{} `cbor:",toarray"`
	Doubt, Measured float64
}

// Fit is a claim's use of a device.
type Fit struct {
	Activity  []byte `cbor:"4,keyasint,omitempty"` // histograms
	Bandwidth []byte `cbor:"5,keyasint,omitempty"`
	FitFacts
	Ended  *Share `cbor:"11,keyasint,omitempty"` // its share when it ended
	Advice []byte `cbor:"12,keyasint,omitempty"` // for an ended claim, in JSON
	Use    Use    `cbor:"13,keyasint"`
}

// FitFacts are facts about a claim's use of a device.
type FitFacts struct {
	Engine   string `cbor:"6,keyasint,omitempty"`  // name of the engine of Media
	Divided  bool   `cbor:"7,keyasint,omitempty"`  // its part was unknown at some time
	Partial  bool   `cbor:"8,keyasint,omitempty"`  // it began before the first measurement
	Conflict bool   `cbor:"9,keyasint,omitempty"`  // at some time the device worked although its utilization was 0
	Several  bool   `cbor:"10,keyasint,omitempty"` // when it ended, it had further shares
}

// Use has the numbers of a claim's use of a device.
type Use struct {
	_        struct{} `cbor:",toarray"`
	Memory   float64  // highest memory in use, in bytes
	Measured float64  // seconds in which the memory was measured
	Readings float64  // number of readings of the memory
	Level    float64  // memory in bytes when its peak last grew
	Grown    float64  // value of Measured at that time
	Near     float64  // seconds since then in which the memory was near that level
	Copies   float64  // highest use of an engine that copies
	Media    float64  // highest use of an engine for media
	Peers    float64  // highest rate over links between devices, in bytes per second
}

// Share is a claim's share of a device.
type Share struct {
	ShareID  string   `cbor:"1,keyasint,omitempty"`
	Request  string   `cbor:"2,keyasint,omitempty"`
	Admin    bool     `cbor:"3,keyasint,omitempty"`
	Consumed []Amount `cbor:"4,keyasint,omitempty"`
}

// Amount is an amount of a resource.
type Amount struct {
	_        struct{} `cbor:",toarray"`
	Resource string
	Value    float64
}

// Distribution is the distribution of a quantity of a claim.
type Distribution struct {
	Namespace string        `cbor:"2,keyasint,omitempty"`
	Name      string        `cbor:"3,keyasint,omitempty"`
	Driver    string        `cbor:"4,keyasint,omitempty"`
	Series    Series        `cbor:"5,keyasint"`
	Histogram []byte        `cbor:"6,keyasint,omitempty"`
	Observed  []Observation `cbor:"-"` // since the histogram was written
}

// Observation is a value that applied for some seconds.
type Observation struct {
	_              struct{} `cbor:",toarray"`
	Value, Seconds float64
}

// Lives are the distributions of a driver: how long its claims took to be prepared and to become
// active.
type Lives struct {
	Driver      string `cbor:"2,keyasint,omitempty"`
	Born        Stamp  `cbor:"3,keyasint,omitempty"`
	Preparation []byte `cbor:"4,keyasint,omitempty"` // histograms
	Prepared    Stamp  `cbor:"5,keyasint,omitempty"` // when it was first in a snapshot
	Activity    []byte `cbor:"6,keyasint,omitempty"`
	Active      Stamp  `cbor:"7,keyasint,omitempty"`
}

// Name is the identity of a claim or pod. A claim has only labels.
type Name struct {
	Namespace string `cbor:"2,keyasint,omitempty"`
	Name      string `cbor:"3,keyasint,omitempty"`
	UID       string `cbor:"4,keyasint,omitempty"`
	Allocated Stamp  `cbor:"5,keyasint,omitempty"`
	podresources.PodMeta
	Known    bool `cbor:"12,keyasint,omitempty"` // a pod's object is known
	Labelled bool `cbor:"13,keyasint,omitempty"` // the labels are known
}
