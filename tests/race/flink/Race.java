import java.io.IOException;
import java.io.Serializable;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Joules and samples of each workload in windows of ten seconds, exactly once, by Apache Flink.
 *
 * <p>Race BROKERS PREFIX OUTPUT EVENTS STATE_FOLDER. Ends at the end of the topics.
 */
public final class Race {
  private static final long WINDOW = 10_000_000;

  /** Sums of an open window. */
  public static final class Sums implements Serializable {
    public double joules;
    public double samples;
  }

  /** What is kept of a workload; it lives on the heap, and a checkpoint writes it. */
  public static final class Workload implements Serializable {
    public Map<String, double[]> devices = new HashMap<>();
    public TreeMap<Long, Sums> open = new TreeMap<>();
    public long progressMicros = Long.MIN_VALUE;
    public double samplesTotal;
  }

  private static final class Reading implements KafkaRecordDeserializationSchema<Event> {
    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Event> out) throws IOException {
      Event event = Event.parse(record.value());
      if (event != null) {
        out.collect(event);
      }
    }

    @Override
    public TypeInformation<Event> getProducedType() {
      return Types.POJO(Event.class);
    }
  }

  private static final class Windows extends KeyedProcessFunction<String, Event, String> {
    private transient ValueState<Workload> state;

    @Override
    public void open(OpenContext context) {
      state = getRuntimeContext().getState(new ValueStateDescriptor<>("workload", Types.GENERIC(Workload.class)));
    }

    @Override
    public void processElement(Event event, Context context, Collector<String> out) throws IOException {
      Workload workload = state.value();
      if (workload == null) {
        workload = new Workload();
      }
      if (event.isTelemetry) {
        double[] before = workload.devices.get(event.device);
        if (before == null) {
          workload.devices.put(event.device, new double[] {event.micros, event.joulesTotal});
        } else if (before[0] < event.micros) {
          add(workload, (long) before[0], event.micros, event.joulesTotal - before[1], true, context);
          before[0] = event.micros;
          before[1] = event.joulesTotal;
        }
      } else {
        if (workload.progressMicros != Long.MIN_VALUE && workload.progressMicros < event.micros) {
          add(workload, workload.progressMicros, event.micros, event.samplesTotal - workload.samplesTotal, false, context);
        }
        workload.progressMicros = event.micros;
        workload.samplesTotal = event.samplesTotal;
      }
      state.update(workload);
    }

    /** Adds what a counter rose by to the windows that the time touches. */
    private static void add(Workload workload, long from, long to, double rise, boolean isEnergy, Context context) {
      for (long start = from - Math.floorMod(from, WINDOW); start < to; start += WINDOW) {
        double part = (double) (Math.min(to, start + WINDOW) - Math.max(from, start)) / (to - from);
        if (part <= 0) {
          continue;
        }
        Sums sums = workload.open.get(start);
        if (sums == null) {
          sums = new Sums();
          workload.open.put(start, sums);
          context.timerService().registerEventTimeTimer((start + WINDOW) / 1_000);
        }
        if (isEnergy) {
          sums.joules += rise * part;
        } else {
          sums.samples += rise * part;
        }
      }
    }

    @Override
    public void onTimer(long millis, OnTimerContext context, Collector<String> out) throws IOException {
      Workload workload = state.value();
      Iterator<Map.Entry<Long, Sums>> open = workload.open.headMap(millis * 1_000 - WINDOW, true).entrySet().iterator();
      while (open.hasNext()) {
        Map.Entry<Long, Sums> window = open.next();
        out.collect(Event.window(context.getCurrentKey(), window.getKey(), window.getValue().joules, window.getValue().samples));
        open.remove();
      }
      state.update(workload);
    }
  }

  public static void main(String[] arguments) throws Exception {
    String brokers = arguments[0];
    String prefix = arguments[1];
    String output = arguments[2];
    Configuration settings = new Configuration();
    settings.setString("pipeline.object-reuse", "true");
    settings.setString("pipeline.auto-watermark-interval", "200 ms");
    settings.setString("execution.checkpointing.interval", "1000 ms");
    settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    settings.setString("state.backend.type", "hashmap");
    settings.setString("execution.checkpointing.storage", "filesystem");
    settings.setString("execution.checkpointing.dir", "file://" + arguments[4]);
    settings.setString("taskmanager.memory.network.min", "64mb");
    settings.setString("taskmanager.memory.network.max", "64mb");
    settings.setString("taskmanager.memory.managed.size", "16mb");
    settings.setString("rest.port", "0");
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
    KafkaSource<Event> source = KafkaSource.<Event>builder()
        .setBootstrapServers(brokers)
        .setTopics(prefix + "gpu.telemetry.v1", prefix + "training.progress.v1")
        .setGroupId(output)
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setBounded(OffsetsInitializer.latest())
        .setProperty("isolation.level", "read_committed")
        .setProperty("max.poll.records", "2000")
        .setProperty("fetch.max.wait.ms", "100")
        .setDeserializer(new Reading())
        .build();
    WatermarkStrategy<Event> times = WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(2))
        .withTimestampAssigner((event, before) -> event.micros / 1_000)
        .withIdleness(Duration.ofSeconds(5));
    DataStream<Event> events = environment.fromSource(source, times, "events");
    // One task reads and folds: nothing is sent over a network, nothing is copied.
    KeyedStream<Event, String> keyed = DataStreamUtils.reinterpretAsKeyedStream(events, event -> event.workload, Types.STRING);
    KafkaSink<String> sink = KafkaSink.<String>builder()
        .setBootstrapServers(brokers)
        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(output)
        .setProperty("transaction.timeout.ms", "60000")
        .setProperty("compression.type", "lz4")
        .setRecordSerializer(KafkaRecordSerializationSchema.builder()
            .setTopic(output).setValueSerializationSchema(new SimpleStringSchema()).build())
        .build();
    keyed.process(new Windows()).sinkTo(sink);
    environment.execute("race");
    Runtime.getRuntime().halt(0);
  }
}
